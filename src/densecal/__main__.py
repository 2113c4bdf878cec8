"""`python -m densecal`."""

from densecal.cli import main

if __name__ == "__main__":
    main()
