"""Names that other distributions take, and their modules. `__init__.py` imports each when it is
first used.
"""

# The program, its commands and its processes.
from understudy_kit.cli.commands import Command as Command
from understudy_kit.cli.commands import describe as describe
from understudy_kit.cli.main import main as main

# Settings that several commands have.
from understudy_kit.config.dataset import DatasetConfig as DatasetConfig
from understudy_kit.config.dataset import SelectionConfig as SelectionConfig
from understudy_kit.config.dataset import SourceConfig as SourceConfig

# Types and bounds of a setting, and facts of it.
from understudy_kit.config.declare import ByHand as ByHand
from understudy_kit.config.declare import Fraction as Fraction
from understudy_kit.config.declare import Ge as Ge
from understudy_kit.config.declare import Gt as Gt
from understudy_kit.config.declare import Ids as Ids
from understudy_kit.config.declare import Interval as Interval
from understudy_kit.config.declare import Natural as Natural
from understudy_kit.config.declare import Positional as Positional
from understudy_kit.config.declare import Positive as Positive
from understudy_kit.config.declare import Processes as Processes
from understudy_kit.config.declare import Scale as Scale

# Files and checks of settings, and settings as plain values.
from understudy_kit.config.files import SUFFIXES as SUFFIXES
from understudy_kit.config.files import read_file as read_file
from understudy_kit.config.help import flag_of as flag_of
from understudy_kit.config.hooks import OtherNames as OtherNames
from understudy_kit.config.limits import HostLimit as HostLimit
from understudy_kit.config.on_resume import Fixed as Fixed
from understudy_kit.config.on_resume import OnResume as OnResume
from understudy_kit.config.schema import complete as complete
from understudy_kit.config.schema import differences as differences
from understudy_kit.config.schema import dump_yaml as dump_yaml
from understudy_kit.config.schema import flat as flat
from understudy_kit.config.schema import load as load
from understudy_kit.config.schema import override as override
from understudy_kit.config.schema import plain as plain
from understudy_kit.config.schema import validate as validate
from understudy_kit.config.schema import validate_new as validate_new
from understudy_kit.config.schema import without_credentials as without_credentials
from understudy_kit.config.source_lists import expand_settings as expand_settings
from understudy_kit.config.source_lists import list_sources as list_sources
from understudy_kit.config.workers import WorkersConfig as WorkersConfig

# A success rate.
from understudy_kit.intervals import wilson_interval as wilson_interval

# Processes of this host.
from understudy_kit.launch import module_command as module_command

# Pages and their curves.
from understudy_kit.report.curves import COLORS as COLORS
from understudy_kit.report.curves import Curve as Curve
from understudy_kit.report.curves import numbers as numbers
from understudy_kit.report.curves import ranges as ranges
from understudy_kit.report.page import STATIC as STATIC
from understudy_kit.report.page import Block as Block
from understudy_kit.report.page import Blocks as Blocks
from understudy_kit.report.page import as_rgb as as_rgb
from understudy_kit.report.page import refuse_foreign as refuse_foreign
from understudy_kit.report.page import render_file as render_file
from understudy_kit.report.page import render_page as render_page
from understudy_kit.report.page import write_page as write_page

# Signals that stop a command.
from understudy_kit.signals import Stop as Stop
from understudy_kit.signals import Stopped as Stopped
from understudy_kit.signals import ended_by_signals as ended_by_signals
from understudy_kit.signals import ended_in_calls as ended_in_calls
from understudy_kit.signals import interrupted_by_signals as interrupted_by_signals
