"""Modules that are imported by name, data files, and metadata, for PyInstaller.

The application includes the installed runtimes, because the backends import them. Exclude unused ones with
`--exclude-module openvino`.
"""

from PyInstaller.utils.hooks import collect_data_files, collect_submodules, copy_metadata

#: For those who develop models and backends; an application does not import them.
_LEFT_OUT = ("infersdk.testing", "infersdk.integrations", "infersdk.importers", "infersdk._pyinstaller")

hiddenimports = collect_submodules("infersdk", filter=lambda name: not name.startswith(_LEFT_OUT))
hiddenimports.append("_cffi_backend")  # the native core imports it, where no analysis of Python sees it
datas = collect_data_files("infersdk") + copy_metadata("infersdk")  # metadata: other packages register backends there
excludedimports = ["torch", "tensorflow", "keras", "pytest", "IPython", "matplotlib"]
