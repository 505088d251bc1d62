"""Modules that are imported by name, data files, and metadata, for PyInstaller.

The application includes the installed runtimes, because the backends import them. Exclude unused ones with
`--exclude-module openvino`. Other packages import PyTorch where it is installed: `--exclude-module torch`.
"""

from PyInstaller.utils.hooks import (
    can_import_module,
    collect_data_files,
    collect_entry_point,
    collect_submodules,
    copy_metadata,
)

#: For those who develop models and backends; an application does not import them.
_LEFT_OUT = ("infersdk.testing", "infersdk.integrations", "infersdk.importers", "infersdk._pyinstaller")
#: Runtimes that a backend imports by name.
_RUNTIMES = ("tensorrt", "tensorrt_rtx_bindings", "tensorrt_rtx")

hiddenimports = collect_submodules("infersdk", filter=lambda name: not name.startswith(_LEFT_OUT))
hiddenimports.append("_cffi_backend")  # the native core imports it, where no analysis of Python sees it
hiddenimports += [name for name in _RUNTIMES if can_import_module(name)]
datas = collect_data_files("infersdk") + copy_metadata("infersdk")
for group in ("infersdk.backends", "infersdk.custom_ops"):  # of other packages, which are found by their metadata
    metadata, modules = collect_entry_point(group)
    datas += metadata
    hiddenimports += modules
excludedimports = ["torch", "tensorflow", "keras", "pytest", "IPython", "matplotlib"]
