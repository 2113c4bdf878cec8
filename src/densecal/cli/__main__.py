"""`python -m densecal.cli`."""

from densecal.cli import main

main()
