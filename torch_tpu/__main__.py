# SPDX-License-Identifier: Apache-2.0 - `python -m torch_tpu` is the command `torch-tpu`.
import sys

from torch_tpu.command import main

sys.exit(main())
