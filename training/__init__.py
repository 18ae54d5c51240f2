"""How the bundled nano checkpoint is made: data from openly licensed voices, then one module after another."""
