"""Programs that run in processes of their own, in any Python that has their framework: `__main__.py` starts one.

They import nothing of infersdk outside of this folder. `exchange` has what they share.
"""
