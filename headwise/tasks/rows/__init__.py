"""How rows are read: tables of any format, questions, series, pictures, text files; and which cannot be used."""
