"""How noise is drawn, and the queries that are released with it."""
