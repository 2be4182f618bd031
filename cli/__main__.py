"""`python -m transformer_kit.cli` is `tkit`."""

from transformer_kit.cli.app import main

main()
