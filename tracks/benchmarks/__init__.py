"""Data sets beyond those of the report card: benchmarks, most of them Korean, and Korean instructions."""
