"""Drop-in replacements: they have the signatures of well-known renderers and render on a worker. Needs `torch`."""

from lumigrad.client.base.extras import require

require("torch", "torch", "lumigrad.client.compat")
