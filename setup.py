"""Puts `conf/`, which stands at the top of the checkout, into the wheel as data of `c2c`."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithSettings(build_py):
    """Copies the settings beside the modules of `c2c`."""

    def run(self) -> None:
        """Build as usual; an editable install reads `conf/` where it is."""
        super().run()
        if not self.editable_mode:
            shutil.copytree("conf", Path(self.build_lib) / "c2c" / "conf", dirs_exist_ok=True)


setup(cmdclass={"build_py": BuildWithSettings})
