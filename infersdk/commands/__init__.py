"""The subcommands of `infersdk`: one module each, with `register(subparsers)`."""
