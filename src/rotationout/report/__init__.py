"""From records to figures, tables and one HTML page. Nothing here trains or draws random numbers."""
