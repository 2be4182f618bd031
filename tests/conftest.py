"""What every test starts from."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from transformer_kit.logs import ROOT


@pytest.fixture(autouse=True)
def _quiet_logger() -> Iterator[None]:
    """The toolkit's logger as it was: the command line turns propagation off, which would blind `caplog` later."""
    logger = logging.getLogger(ROOT)
    before = logger.level, logger.propagate, list(logger.handlers)
    yield
    logger.setLevel(before[0])
    logger.propagate, logger.handlers[:] = before[1:]
