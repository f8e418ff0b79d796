"""Checking gradients against finite differences, and saying what is wrong with them.

`gradcheck` is the entry; `problem` holds the function and its inputs, `differences` and `compare` are the numbers,
`diagnosis` the patterns of faults, `walk` and `blame` find the operation, `report` writes the text.
"""
