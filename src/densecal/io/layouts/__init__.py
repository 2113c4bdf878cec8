"""The folder layouts of other tools: which files belong together, and how they are read. One file per tool."""
