# SPDX-License-Identifier: Apache-2.0 - the demo: train on real digits and talk to a real language model.
