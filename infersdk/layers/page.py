def write_page(report, path): raise NotImplementedError
