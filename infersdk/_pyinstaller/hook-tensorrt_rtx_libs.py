"""The libraries of TensorRT-RTX, which it loads by their names, for PyInstaller."""

from PyInstaller.utils.hooks import collect_dynamic_libs

binaries = collect_dynamic_libs("tensorrt_rtx_libs", search_patterns=["*.dll", "*.dylib", "*.so", "*.so.*"])
