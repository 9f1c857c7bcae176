"""Readers of rows: tables in any format, questions, series, images, text files; they also report unusable rows."""
