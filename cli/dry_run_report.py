"""What `tkit train --dry-run` prints: what each rank would hold."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from transformer_kit.console import print_table

if TYPE_CHECKING:
    from transformer_kit.tasks.dry_run import Held, Plan


def show(plan: Plan) -> None:
    """Print the table on stdout, and what may surprise below it."""
    title = f"{plan.config.model.family} on {plan.ranks:,} rank{'s' * (plan.ranks != 1)}, {_way(plan)}: it builds"
    print_table(["", "all", "a rank, at most", "at least"], rows(plan), title=title, stream=sys.stdout)
    for line in notes(plan):
        print(line)


def rows(plan: Plan) -> list[list[str]]:
    """Name; of one copy of the model; of the rank that holds most; of the one that holds least."""
    whole = plan.parameters
    listed = [["parameters", f"{whole:,}", f"{plan.most.parameters:,}", f"{plan.least.parameters:,}"]]
    if plan.trained != whole:
        listed.append(["of which are trained", f"{plan.trained:,}", "", ""])

    def add(name: str, attribute: str) -> None:
        most, least = getattr(plan.most, attribute), getattr(plan.least, attribute)
        if most:
            listed.append([name, "", size(most), size(least)])

    add("weights (fp32)", "weights")
    add("gradients (fp32)", "gradients")
    add(f"moments of {plan.config.optimizer.name} (fp32)", "moments")
    add("moving average (fp32)", "average")
    if plan.buffers:
        listed.append(["buffers", "", size(plan.buffers), size(plan.buffers)])
    if plan.gathered:
        listed.append(["whole weights while it computes", "", size(plan.gathered), size(plan.gathered)])
    totals = [size(_total(held) + plan.buffers + plan.gathered) for held in (plan.most, plan.least)]
    return [*listed, ["together", "", *totals]]


def notes(plan: Plan) -> list[str]:
    """Batches, and what was assumed."""
    from transformer_kit.tasks.dry_run import BYTES, batches_of_an_update

    trainer, tokens = plan.config.trainer, plan.config.data.batch.tokens
    count = batches_of_an_update(plan.config)
    batch = "as many tokens as its memory holds" if tokens == "auto" else f"up to {tokens:,} tokens a side"
    lines = [f"a rank's batch: {batch}, padding counted; activations come on top"]
    if trainer.accumulate_tokens is None:
        lines.append("an update: one batch of each rank")
    else:
        about = "" if count is None else f": about {count:,} batches, dealt to the ranks in turn"
        lines.append(f"an update: at least {trainer.accumulate_tokens:,} target tokens{about}")
        if count is not None and count < plan.ranks:
            lines.append(
                f"warning: {plan.ranks - count:,} of {plan.ranks:,} ranks would have nothing to do: raise "
                "trainer.accumulate_tokens, or lower data.batch.tokens or trainer.devices"
            )
    if plan.together > 1 and (trainer.accumulate_tokens is not None and (count is None or count > plan.ranks)):
        whole = size(BYTES * plan.trained)
        lines.append(
            f"with several batches of a rank in an update its gradients are whole until the last: {whole} more"
        )
    if plan.together > 1:
        lines.append(
            f"whole weights, {size(BYTES * plan.parameters)}, come on top for a while: in the main memory of rank 0 "
            "when a session begins and at each save, on every rank in each validation"
        )
    sizes = " and ".join(f"{each:,}" for each in dict.fromkeys(plan.vocabulary))
    origin = "of the trained tokenizer" if plan.trained_tokenizer else "as the configuration says: none is trained yet"
    lines.append(f"vocabulary: {sizes} pieces, {origin}")
    if plan.classes is not None:
        lines.append(f"classes: {plan.classes}, where the data have more, the classifier has more rows")
    return lines


def size(count: float) -> str:
    """Bytes in the largest unit that leaves 1 or more."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= scale:
            return f"{count / scale:.2f} {unit}"
    return f"{count:,.0f} B"


def _way(plan: Plan) -> str:
    if plan.together == 1:
        return "each with the whole model"
    copies = plan.ranks // plan.together
    return "which hold one copy together" if copies == 1 else f"{copies:,} copies on {plan.together:,} ranks each"


def _total(held: Held) -> int:
    return held.weights + held.gradients + held.moments + held.average
