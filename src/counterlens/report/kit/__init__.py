"""Building blocks of pages: text, tables, plots, SVG."""
