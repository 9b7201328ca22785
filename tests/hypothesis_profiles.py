"""Hypothesis's profiles, registered when a test module imports hypothesis: the others need not load it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType


def register_profiles() -> None:
    """Draw the same examples in every run of the gate. `make nightly` draws new ones and prints the seed.

    Of a mutation only whether a test fails is of interest, so its example is not made smaller.
    """
    from hypothesis import Phase, settings
    from hypothesis.internal.conjecture import providers
    from hypothesis.internal.constants_ast import Constants

    settings.register_profile("gate", deadline=None, derandomize=True)
    settings.register_profile(
        "mutations", deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate, Phase.target]
    )
    settings.register_profile("nightly", deadline=None, max_examples=500, print_blob=True)
    settings.load_profile("gate")

    no_constants = Constants()
    local_constants = providers._get_local_constants

    def constants() -> Constants:
        """Return the constants of our modules that hypothesis draws, too: only in the night.

        They are those of the modules that are loaded, which differ between workers and orders of tests.
        """
        return local_constants() if settings.get_current_profile_name() == "nightly" else no_constants

    providers._get_local_constants = constants


class _ThenProfiles(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        register_profiles()


class _AtFirstImport(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "hypothesis":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin:
            spec.loader = _ThenProfiles(name, spec.origin)
        return spec


sys.meta_path.insert(0, _AtFirstImport())
