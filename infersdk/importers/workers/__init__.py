"""Scripts that run in separate processes, in any Python with their framework. `__main__.py` starts one.

They import nothing from infersdk outside of this folder. `exchange` contains their shared functions.
"""
