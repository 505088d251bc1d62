"""The libraries of OpenVINO, which it loads by their names, for PyInstaller."""

from PyInstaller.utils.hooks import collect_dynamic_libs

binaries = collect_dynamic_libs("openvino", search_patterns=["*.dll", "*.dylib", "*.so", "*.so.*"])
