"""`python -m headscape.cli`, for launchers such as torchrun."""

from headscape.cli.app import main

main()
