"""BERT and RoBERTa: an encoder with learned positions, segments, a norm on its input, and one after each sub-layer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from torch import Tensor

from transformer_kit.interop import options as make
from transformer_kit.interop.foreign import Foreign, activation_name
from transformer_kit.interop.layout import CLASSIFIER, Extent, Layout, one_stack
from transformer_kit.interop.options import Plain, Sizes, sizes
from transformer_kit.interop.tables import Names, Piece, Rule, has, linear, matrix, norm

BUFFERS = r"(bert\.|roberta\.)?embeddings\.(position_ids|token_type_ids)"
OLD_NAMES = ((r"(LayerNorm|layer_norm)\.gamma$", r"\1.weight"), (r"(LayerNorm|layer_norm)\.beta$", r"\1.bias"))


class Bert(Layout):
    """`model_type: bert`: the bare encoder, masked language models, pre-training models, sentence classifiers."""

    names = Names(
        "bert",
        prefixes=("bert.",),
        skipped=(BUFFERS,),
        dropped=(r"cls\.seq_relationship\.(weight|bias)",),
        renamed=OLD_NAMES,
    )
    model_types = ("bert",)
    family = "encoder_only"
    masked: tuple[str, ...] = ("BertForMaskedLM", "BertForPreTraining")
    bare_model = "BertModel"
    classifier = "BertForSequenceClassification"
    stem = "bert"
    pad_id = 0
    classifiers = True

    def read(self, hf: Foreign, tensors: Collection[str] | None) -> Plain:
        kind = self.kind(hf)
        for key in ("is_decoder", "add_cross_attention"):
            hf.must_be(key, False)
        hf.must_be("position_embedding_type", "absolute")
        activation = hf.activation("hidden_act", "gelu")
        rate = hf.number("hidden_dropout_prob", 0.1)
        pooled = f"{self.stem}.pooler.dense.weight"
        pooler = kind not in self.masked if tensors is None else has(tensors, pooled, self.names.prefixes)
        head = make.no_head()
        if kind in self.masked:
            head = make.mlm_head(self.head_activation(activation))
        return make.model(
            "encoder_only",
            d_model=hf.integer("hidden_size", 768),
            d_ff=hf.integer("intermediate_size", 3072),
            num_heads=hf.integer("num_attention_heads", 12),
            head_dim=None,
            encoder=hf.layers("num_hidden_layers", 12),
            decoder=None,
            tie="output" if hf.flag("tie_word_embeddings", True) else "none",
            max_length=hf.integer("max_position_embeddings", 512) - self.spare(hf),
            rates=make.dropout(rate, rate, hf.number("attention_probs_dropout_prob", 0.1), 0.0),
            position=make.learned(),
            norm=make.layernorm(hf.number("layer_norm_eps", 1e-12)),
            residual=make.post(),
            attention=make.attention(True, True),
            feedforward=make.dense(activation, True),
            head=head,
            embedding_norm=True,
            types=hf.integer("type_vocab_size", 2),
            pooler=pooler or kind == self.classifier,
        )

    def kind(self, hf: Foreign) -> str:
        """The class that the tensors were saved from."""
        return hf.architecture(self.bare_model, *self.masked, self.classifier)

    def spare(self, hf: Foreign) -> int:
        """First rows of the position table that no input reads."""
        return 0

    def head_activation(self, activation: str) -> str:
        """The activation of the masked language model's head."""
        return activation

    def write(self, options: Plain, extent: Extent) -> Plain:
        rates, head = options["dropout"], options["head"]
        masked = not head["_target_"].endswith("NoHead")
        found = {
            "architectures": [self.classifier if extent.classes else self.masked[0] if masked else self.bare_model],
            "model_type": self.model_types[0],
            "vocab_size": extent.source,
            "hidden_size": options["d_model"],
            "intermediate_size": options["d_ff"],
            "num_hidden_layers": options["encoder"]["layers"],
            "num_attention_heads": options["num_heads"],
            "hidden_act": activation_name(options["feedforward"].get("activation", "gelu")),
            "max_position_embeddings": options["max_length"] + self.pad_id + 1
            if self.pad_id
            else options["max_length"],
            "type_vocab_size": options["embedding"]["types"] or 1,
            "layer_norm_eps": options["norm"].get("eps", 1e-12),
            "tie_word_embeddings": options["tie"] != "none",
            "hidden_dropout_prob": rates["residual"],
            "attention_probs_dropout_prob": rates["attention"],
            "pad_token_id": self.pad_id,
        }
        if extent.classes:
            found["id2label"] = {str(number): f"LABEL_{number}" for number in range(extent.classes)}
        return found

    def prepared(self, options: Plain, state: Mapping[str, Tensor]) -> tuple[Plain, Mapping[str, Tensor]]:
        """No segments are one segment whose vector is zero; a classifier needs no other head."""
        body = "body." if CLASSIFIER in state else ""
        if body:
            options = options | {"head": make.no_head(), "pooler": True}
            state = {
                _pooler_of_body(name): tensor for name, tensor in state.items() if not name.startswith("body.head.")
            }
        if not options["embedding"]["types"] and f"{body}embedding.weight" in state:
            options = options | {"embedding": options["embedding"] | {"types": 1}}
            zero = state[f"{body}embedding.weight"].new_zeros(1, options["d_model"])
            state = {**state, f"{body}embedding.types.weight": zero}
        return options, state

    def extent(self, hf: Foreign) -> Extent:
        classes = 0
        if self.kind(hf) == self.classifier:
            hf.must_be("problem_type", "single_label_classification")
            classes = len(hf.get("id2label", {})) or hf.integer("num_labels", 2)
        return one_stack(hf, 30522, classes)

    def extent_of(self, state: Mapping[str, Tensor]) -> Extent:
        if CLASSIFIER in state:
            rows = len(state["body.embedding.weight"])
            return Extent(rows, rows, len(state[CLASSIFIER]))
        rows = len(state["embedding.weight"])
        return Extent(rows, rows)

    def rules(self, options: Plain, extent: Extent) -> list[Rule]:
        found, stem = sizes(options, "encoder"), self.stem
        dim, vocab = found.dim, extent.source
        head, tied = not options["head"]["_target_"].endswith("NoHead"), options["tie"] != "none"
        spare = self.pad_id + 1 if self.pad_id else 0
        words = Piece(f"{stem}.embeddings.word_embeddings.weight", (vocab, dim), self.output_names() if tied else ())
        places = Piece(f"{stem}.embeddings.position_embeddings.weight", (options["max_length"] + spare, dim))
        rules = [
            Rule("embedding.weight", (words,)),
            Rule("encoder.position.table", (places,), spare=spare),
            matrix(
                "embedding.types.weight",
                f"{stem}.embeddings.token_type_embeddings.weight",
                options["embedding"]["types"],
                dim,
            ),
            *norm("encoder.input_norm", f"{stem}.embeddings.LayerNorm", dim, True),
        ]
        for layer in range(found.layers):
            rules += _block(f"encoder.blocks.{layer}", f"{stem}.encoder.layer.{layer}", found)
        if options["pooler"]:
            rules += linear("pooler", self.pooler_name(extent), dim, dim, True)
        if head:
            rules += self.head_rules(vocab, dim, tied)
            if not tied:
                rules.append(matrix("head.weight", self.output_names()[0], vocab, dim))
        if extent.classes:
            rules = [replace(rule, ours=f"body.{rule.ours}") for rule in rules]
            rules += linear("classifier", self.classifier_name(), extent.classes, dim, True)
        return rules

    def output_names(self) -> tuple[str, ...]:
        """What the projection to the vocabulary is called."""
        return ("cls.predictions.decoder.weight",)

    def head_rules(self, vocab: int, dim: int, tied: bool) -> Iterator[Rule]:
        """The head of a masked language model but the projection's matrix; a projection of its own has its own bias."""
        yield from linear("head.transform", "cls.predictions.transform.dense", dim, dim, True)
        yield from norm("head.norm", "cls.predictions.transform.LayerNorm", dim, True)
        yield _bias("cls.predictions.bias", "cls.predictions.decoder.bias", vocab, tied)

    def pooler_name(self, extent: Extent) -> str:
        return f"{self.stem}.pooler.dense"

    def classifier_name(self) -> str:
        return "classifier"

    def bare(self) -> tuple[str, ...]:
        return (self.bare_model,)


class Roberta(Bert):
    """`model_type: roberta`: BERT whose positions are counted from the padding id plus one."""

    names = Names("roberta", prefixes=("roberta.",), skipped=(BUFFERS,), renamed=OLD_NAMES)
    model_types = ("roberta",)
    masked, bare_model = ("RobertaForMaskedLM",), "RobertaModel"
    classifier = "RobertaForSequenceClassification"
    stem = "roberta"
    pad_id = 1

    def spare(self, hf: Foreign) -> int:
        hf.must_be("pad_token_id", self.pad_id, why="positions of this layout are read from padding id 1")
        return self.pad_id + 1

    def head_activation(self, activation: str) -> str:
        return "gelu"  # whatever the layers have

    def output_names(self) -> tuple[str, ...]:
        return ("lm_head.decoder.weight",)

    def head_rules(self, vocab: int, dim: int, tied: bool) -> Iterator[Rule]:
        yield from linear("head.transform", "lm_head.dense", dim, dim, True)
        yield from norm("head.norm", "lm_head.layer_norm", dim, True)
        yield _bias("lm_head.bias", "lm_head.decoder.bias", vocab, tied)

    def pooler_name(self, extent: Extent) -> str:
        return "classifier.dense" if extent.classes else f"{self.stem}.pooler.dense"

    def classifier_name(self) -> str:
        return "classifier.out_proj"


def _bias(shared: str, own: str, vocab: int, tied: bool) -> Rule:
    """The bias of the logits: one tensor of two names, or two of which the projection's own is read."""
    piece = Piece(shared, (vocab,), aliases=(own,)) if tied else Piece(own, (vocab,), shadows=(shared,))
    return Rule("head.bias", (piece,))


def _pooler_of_body(name: str) -> str:
    """A classifier may have a pooler of its own where its body has none."""
    return f"body.{name}" if name.startswith("pooler.") else name


def _block(ours: str, theirs: str, found: Sizes) -> Iterator[Rule]:
    qkv = [f"{theirs}.attention.self.{name}" for name in ("query", "key", "value")]
    dim = found.dim
    yield from linear(f"{ours}.self_attention.qkv", qkv, found.qkv, dim, True, packed="_")
    yield from linear(f"{ours}.self_attention.out", f"{theirs}.attention.output.dense", dim, found.mixed, True)
    yield from norm(f"{ours}.self_residual.norm", f"{theirs}.attention.output.LayerNorm", dim, True)
    yield from linear(f"{ours}.feedforward.up", f"{theirs}.intermediate.dense", found.ff, dim, True)
    yield from linear(f"{ours}.feedforward.down", f"{theirs}.output.dense", dim, found.ff, True)
    yield from norm(f"{ours}.feedforward_residual.norm", f"{theirs}.output.LayerNorm", dim, True)
