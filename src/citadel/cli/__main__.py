"""`python -m citadel.cli` is the command `citadel`."""

from citadel.cli.main import main

main()
