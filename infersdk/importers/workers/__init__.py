"""Scripts that run in processes of their own, and in any Python that has their framework. They import nothing of
infersdk.

Each takes a folder: it reads `request.json` there, and writes `answer.json`: a dict, with `error` and `kind` where it
failed.
"""
