"""Drop-in replacements: the signatures of well-known renderers, the rendering on a worker. Needs the extra `torch`."""

from lumigrad.client.base.extras import require

require("torch", "torch", "lumigrad.client.compat")
