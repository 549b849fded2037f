"""generation_config.json: loaded folders generate the tokens that transformers generates with the same settings."""

import itertools
import json
import random
import shutil
import warnings

import pytest
import torch
import transformers as hf
from helpers import causal, marian, reads

import regard
from regard.decode import TokenRules
from regard.errors import UserError
