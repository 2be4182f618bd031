"""One description of where each tensor of ours stands in a foreign file, read in both directions.

- A `Rule` names a tensor of ours and the pieces that, stacked by rows, make it: q, k and v of one attention, the gate
  and the value of a gated layer.
- `to_ours` follows the rules from a file to our names, `to_theirs` back. Every tensor must be spoken for: one that is
  missing, left over, or of another shape is an error that names it.
- Any tensor of the layout's shapes can travel, so gradients do as well as weights.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from transformer_kit.errors import CheckpointError

LISTED = 3  # problems that a message spells out


@dataclass(frozen=True)
class Piece:
    """One tensor of a foreign file.

    Attributes:
        name: with its prefix.
        shape: as in the file.
        aliases: further names under which the same tensor may stand there, or instead of it.
        shadows: names of what the other program keeps beside it and does not read: copies when written.
    """

    name: str
    shape: tuple[int, ...]
    aliases: tuple[str, ...] = ()
    shadows: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rule:
    """What one tensor of ours is made of.

    Attributes:
        ours: its name in our state dict.
        pieces: stacked by rows, in this order.
        transposed: the file holds (in, out) where we hold (out, in).
        spare: first rows of the file's table that no input ever reads: left out here, zeros there.
        flat: the file holds (1, V) where we hold (V,).
        optional: may be absent from the file: zeros then.
    """

    ours: str
    pieces: tuple[Piece, ...]
    transposed: bool = False
    spare: int = 0
    flat: bool = False
    optional: bool = False


@dataclass(frozen=True)
class Names:
    """How a layout names its tensors besides the rules.

    Attributes:
        layout: for messages.
        prefixes: what may stand, or be missing, in front of a name: a file of a bare model has none.
        skipped: patterns of tensors that are computed, not learnt.
        dropped: patterns of heads that no model here has; left out with a warning by the caller.
        renamed: old spellings: a pattern and what it becomes.
    """

    layout: str
    prefixes: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()

    def today(self, name: str) -> str:
        """A name in its newest spelling."""
        for pattern, new in self.renamed:
            name = re.sub(pattern, new, name)
        return name


def to_ours(tensors: Mapping[str, Tensor], rules: Sequence[Rule], names: Names) -> dict[str, Tensor]:
    """Tensors by our names.

    Args:
        tensors: by the file's names.
        rules: one for each tensor of ours.
        names: of the layout.

    Raises:
        CheckpointError: tensors are missing, left over, of another shape, or differ from what they are tied to.
    """
    left: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if not _matches(name, names.skipped + names.dropped):
            left[names.today(name)] = tensor
    wrong: list[str] = []
    made: dict[str, Tensor] = {}
    for rule in rules:
        parts = [_take(left, piece, rule, names, wrong) for piece in rule.pieces]
        found = [part for part in parts if part is not None]
        if len(found) == len(parts):
            made[rule.ours] = _ours(found, rule)
    wrong += [f"{name} {tuple(tensor.shape)} has no place in this model" for name, tensor in left.items()]
    if wrong:
        raise CheckpointError(_listed(f"the tensors are not those of this {names.layout} model", wrong))
    return made


def to_theirs(state: Mapping[str, Tensor], rules: Sequence[Rule], names: Names) -> dict[str, Tensor]:
    """Tensors by the file's names; aliases are not written.

    Raises:
        CheckpointError: tensors are missing, left over, or of another shape.
    """
    left, wrong, made = dict(state), list[str](), dict[str, Tensor]()
    for rule in rules:
        tensor = left.pop(rule.ours, None)
        if tensor is None:
            wrong.append(f"{rule.ours} is missing")
            continue
        expected = _our_shape(rule)
        if tuple(tensor.shape) != expected:
            wrong.append(f"{rule.ours} is {tuple(tensor.shape)}, it must be {expected}")
            continue
        made.update(_theirs(tensor, rule))
    wrong += [f"{name} {tuple(tensor.shape)} has no place in a {names.layout} file" for name, tensor in left.items()]
    if wrong:
        raise CheckpointError(_listed(f"the model's tensors are not those of the {names.layout} layout", wrong))
    return made


def dropped(tensors: Mapping[str, Tensor], names: Names) -> list[str]:
    """The tensors of a file that an import leaves out although they were learnt."""
    return sorted(name for name in tensors if _matches(name, names.dropped))


def has(names: Collection[str], wanted: str, prefixes: Sequence[str] = ()) -> bool:
    """Whether a file holds a tensor, with or without a prefix."""
    return any(spelling in names for spelling in _spellings(wanted, prefixes))


def matrix(ours: str, theirs: str | Sequence[str], rows: int | Sequence[int], columns: int) -> Rule:
    """A weight of (rows, columns), or several stacked ones of the same columns."""
    names = (theirs,) if isinstance(theirs, str) else tuple(theirs)
    heights = (rows,) if isinstance(rows, int) else tuple(rows)
    return Rule(ours, tuple(Piece(n, (height, columns)) for n, height in zip(names, heights, strict=True)))


def vector(ours: str, theirs: str | Sequence[str], sizes: int | Sequence[int]) -> Rule:
    """A bias or gain, or several end to end."""
    names = (theirs,) if isinstance(theirs, str) else tuple(theirs)
    lengths = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    return Rule(ours, tuple(Piece(name, (length,)) for name, length in zip(names, lengths, strict=True)))


def linear(
    ours: str, theirs: str | Sequence[str], rows: int | Sequence[int], columns: int, bias: bool, packed: str = "."
) -> Iterator[Rule]:
    """Weight and bias of a linear map, or of several that are one of ours.

    Args:
        ours: our name without `.weight`; with `packed="_"` the parameters are `<ours>_weight`, `<ours>_bias`.
        theirs: their names without `.weight`.
        rows: the outputs of each.
        columns: the inputs.
        bias: whether there are biases.
    """
    stems = (theirs,) if isinstance(theirs, str) else tuple(theirs)
    yield matrix(f"{ours}{packed}weight", [f"{stem}.weight" for stem in stems], _many(rows), columns)
    if bias:
        yield vector(f"{ours}{packed}bias", [f"{stem}.bias" for stem in stems], _many(rows))


def norm(ours: str, theirs: str, dim: int, bias: bool) -> Iterator[Rule]:
    """Gain and, where there is one, bias of a norm."""
    yield vector(f"{ours}.weight", f"{theirs}.weight", dim)
    if bias:
        yield vector(f"{ours}.bias", f"{theirs}.bias", dim)


def _many(sizes: int | Sequence[int]) -> tuple[int, ...]:
    return (sizes,) if isinstance(sizes, int) else tuple(sizes)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)


def _spellings(name: str, prefixes: Sequence[str]) -> list[str]:
    """The name as it is, and without the prefix it has."""
    return [name, *(name.removeprefix(prefix) for prefix in prefixes if name.startswith(prefix))]


def _take(left: dict[str, Tensor], piece: Piece, rule: Rule, names: Names, wrong: list[str]) -> Tensor | None:
    """The tensor of a piece, taken out of what is left; None, and a line in `wrong`, where there is none that fits."""
    taken: list[tuple[str, Tensor]] = []
    for alias in (piece.name, *piece.aliases):
        spelling = next((name for name in _spellings(alias, names.prefixes) if name in left), None)
        if spelling is not None:
            taken.append((spelling, left.pop(spelling)))
    for shadow in piece.shadows:
        spelling = next((name for name in _spellings(shadow, names.prefixes) if name in left), None)
        if spelling is not None:
            unread = spelling, left.pop(spelling)
            taken = taken or [unread]
    if not taken:
        if rule.optional:
            return torch.zeros(piece.shape)
        wrong.append(f"{piece.name} {piece.shape} is missing")
        return None
    fits = True
    for name, tensor in taken:
        if tuple(tensor.shape) != piece.shape:
            wrong.append(f"{name} is {tuple(tensor.shape)}, the configuration makes it {piece.shape}")
            fits = False
        elif not tensor.is_floating_point():
            wrong.append(f"{name} holds {str(tensor.dtype).removeprefix('torch.')}, no weights")
            fits = False
        elif not bool(tensor.isfinite().all()):
            wrong.append(f"{name} holds values that are not finite numbers")
            fits = False
    first, tensor = taken[0]
    for name, other in taken[1:]:
        if fits and not torch.equal(tensor, other):
            wrong.append(f"{name} differs from {first}, to which the configuration ties it")
            fits = False
    return tensor if fits else None


def _ours(parts: Sequence[Tensor], rule: Rule) -> Tensor:
    shaped = [part.reshape(-1) if rule.flat else part.T if rule.transposed else part for part in parts]
    whole = shaped[0] if len(shaped) == 1 else torch.cat(shaped)
    return whole[rule.spare :].contiguous()


def _our_shape(rule: Rule) -> tuple[int, ...]:
    shapes = [
        piece.shape[::-1] if rule.transposed else piece.shape[-1:] if rule.flat else piece.shape
        for piece in rule.pieces
    ]
    return (sum(shape[0] for shape in shapes) - rule.spare, *shapes[0][1:])


def _theirs(tensor: Tensor, rule: Rule) -> Iterator[tuple[str, Tensor]]:
    if rule.spare:
        tensor = torch.cat((tensor.new_zeros(rule.spare, *tensor.shape[1:]), tensor))
    axis = 1 if rule.transposed else -1 if rule.flat else 0
    heights = [piece.shape[axis] for piece in rule.pieces]
    for piece, part in zip(rule.pieces, tensor.split(heights), strict=True):
        shaped = part.T if rule.transposed else part
        for name in (piece.name, *piece.shadows):
            yield name, shaped.reshape(piece.shape).contiguous().clone()


def _listed(what: str, wrong: Sequence[str]) -> str:
    more = f"; and {len(wrong) - LISTED} more" if len(wrong) > LISTED else ""
    return f"{what}: {'; '.join(wrong[:LISTED])}{more}"
