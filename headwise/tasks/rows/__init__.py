"""Readers of rows: tables in any format, questions, series, images, text files; and which rows are unusable."""
