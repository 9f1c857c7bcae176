"""Readers of rows: tables in any format, questions, series, images, text files. They report rows that are unusable."""
