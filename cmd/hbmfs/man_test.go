package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Each command has a page under its own name, with its examples as such, and what is told nowhere else.
func TestManualPages(t *testing.T) {
	dir := t.TempDir()
	if code, _, stderr := said("man", dir); code != exitOK {
		t.Fatal(stderr)
	}
	for page, wants := range map[string][]string{
		"hbmfs.1":              {`.TH "HBMFS" 1`, ".SH \"EXIT STATUS\"\n", "\\fBhbmfs mount SOURCE MOUNTPOINT", ".BR hbmfs\\-cache (1)"},
		"hbmfs-mount.1":        {`.TH "HBMFS-MOUNT" 1`, ".SH EXAMPLES\n.PP\n.RS 4\n.nf\nhbmfs mount", ".SH \"FILES\"\n", ".SH \"ENVIRONMENT\"\n", "\\fB5\\fR", "/var/log/hbmfs.log", "\\fB\\-\\-cache\\-size\\fR \\fIsize"},
		"hbmfs-umount.1":       {`.TH "HBMFS-UMOUNT" 1`, "\\fB4\\fR"},
		"hbmfs-cache-verify.1": {`.TH "HBMFS-CACHE-VERIFY" 1`, "\\fB3\\fR", ".BR hbmfs\\-cache (1)"},
		"hbmfs-status.1":       {"\\fB3\\fR"},
	} {
		text, err := os.ReadFile(filepath.Join(dir, page))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range wants {
			if !strings.Contains(string(text), want) {
				t.Errorf("%s has no %q:\n%s", page, want, text)
			}
		}
	}
	if hidden, _ := filepath.Glob(filepath.Join(dir, "hbmfs-bind*")); len(hidden) > 0 {
		t.Errorf("hidden commands have pages: %q", hidden)
	}
}

func TestHelpHasExitCodes(t *testing.T) {
	for line, want := range map[string]string{
		"--help": "  4    umount: the mount is in use, and stays", "help umount": "  4    the mount is in use", "umount --help": "Exit status:", "inspect --help": "there are problems, which are listed",
		"mount --help": "Environment:\n  XDG_STATE_HOME", "check --help": "a line is FAIL",
		"ls --help": "would leave files out", "upgrade --help": "was not upgraded", "inspect -h": "AWS_PROFILE", "pack -h": "hbmfs pack SOURCE... OUT [flags]\n  hbmfs pack --join OUT PART... [flags]\n",
	} {
		code, stdout, stderr := said(strings.Fields(line)...)
		if code != exitOK || stderr != "" || !strings.Contains(stdout, want) {
			t.Errorf("hbmfs %s: exit code %d, no %q in\n%s%s", line, code, want, stdout, stderr)
		}
	}
}

// Help fits 80 columns. A flag's text is short, and states its default once.
func TestTextsOfFlagsAreShort(t *testing.T) {
	var check func(*cobra.Command)
	check = func(cmd *cobra.Command) {
		path := cmd.CommandPath()
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Hidden {
				return
			}
			if words := strings.Fields(f.Usage); len(words) == 0 || len(words) > 25 {
				t.Errorf("%s --%s has %d words, of 1 to 25: %s", path, f.Name, len(words), f.Usage)
			}
			if strings.Count(f.Usage, "default") > 1 || strings.HasSuffix(f.Usage, ".") {
				t.Errorf("%s --%s states two defaults, or ends like a sentence: %s", path, f.Name, f.Usage)
			}
		})
		for line := range strings.Lines(manual().Help(cmd, 80)) {
			if line = strings.TrimSuffix(line, "\n"); len(line) > 80 {
				t.Errorf("hbmfs %s --help has a line of %d columns: %s", path, len(line), line)
			}
			if strings.Count(line, "(default") > 1 || strings.Contains(line, "(default )") {
				t.Errorf("hbmfs %s --help states a default twice: %s", path, line)
			}
		}
		for _, below := range cmd.Commands() {
			if below.IsAvailableCommand() && below.Name() != "completion" && below.Name() != "help" {
				check(below)
			}
		}
	}
	check(newRootCommand())
}

// docs/reference/commands.md is what the commands say.
func TestDocsOfCommandsAreCurrent(t *testing.T) {
	code, stdout, stderr := said("man", "--markdown")
	if code != exitOK {
		t.Fatal(stderr)
	}
	path := filepath.Join("..", "..", "docs", "reference", "commands.md")
	if text, err := os.ReadFile(path); err != nil || string(text) != stdout {
		t.Errorf("%s is not what bin/hbmfs man --markdown prints (%v)", path, err)
	}
}
