"""Drawing and tabulating records: terminal and LaTeX tables, CSV, figures."""
