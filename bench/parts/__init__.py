"""The measurements of ``bench.pipeline``, one module each; every one measures its limit in the same run."""
