"""One operator per file: its value, its interval rule, its linear relaxation."""
