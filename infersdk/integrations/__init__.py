"""Working together with other libraries, one module each, imported when it is used."""
