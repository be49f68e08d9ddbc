package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
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
