"""Studies, figures of papers and attacks on published accountings. Not installed: import it from a clone."""
