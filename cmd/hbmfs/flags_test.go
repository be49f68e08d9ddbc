package main

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"
)

// said runs one command line.
func said(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = run(context.Background(), append([]string{"hbmfs"}, args...), &out, &err)
	return code, out.String(), err.String()
}

func TestMistakesGetASuggestion(t *testing.T) {
	for line, want := range map[string]string{
		"moutn a b":                       `unknown command "hbmfs moutn": did you mean hbmfs mount?`,
		"umuont a":                        "did you mean hbmfs umount?",
		"help moutn":                      "did you mean hbmfs mount?",
		"frobnicate":                      "hbmfs --help lists the commands",
		"cache sl":                        "did you mean hbmfs cache ls?",
		"help cache sl":                   "did you mean hbmfs cache ls?",
		"mount --alow-other a b":          "unknown flag --alow-other: did you mean --allow-other?",
		"mount --nonsense a b":            "unknown flag --nonsense: hbmfs mount --help lists the flags",
		"mount --cache a b":               "did you mean --cache-dir, --cache-min-free or --cache-scrub?",
		"mount -o alow_other a b":         "did you mean allow_other?",
		"mount --log-level loud a b":      `--log-level: "loud" is none of debug, info, warn, error`,
		"mount --format megatrn a b":      `"megatrn" is none of`,
		"pack --to megatrn a b":           "did you mean megatron?",
		"pack --val-fraction x a b":       `--val-fraction: "x" is not a number`,
		"read --path dirct f":             "did you mean direct?",
		"read --require auto f":           `--require: "auto" is none of direct`,
		"cufile-json --for reed":          "did you mean read?",
		"top --sort luck":                 `--sort: "luck" is none of`,
		"mount --connections many a b":    `--connections: "many" is not a whole number`,
		"mount --wait 5 a b":              `--wait: "5" is not a time such as 90s, 2m or 1h`,
		"mount --cache-size 10X a b":      `--cache-size: "10X" is no size, its unit is unknown: write it as 64MiB, 10G, 1.5TB`,
		"mount --cache-scrub 10X a b":     `--cache-scrub: "10X" is no rate`,
		"warm --rate-limit 1/h a":         `--rate-limit: "1/h" is no rate`,
		"plan --epoch 2X":                 `--epoch: "2X" is no size`,
		"bench --block many f":            `--block: "many" is no size`,
		"mount":                           "it takes 2 arguments, not 0: usage: hbmfs mount SOURCE MOUNTPOINT",
		"mount --read-ahead x a b":        `--read-ahead: "x" is no size`,
		"read --offset x f":               `--offset: "x" is no size`,
		"pack --shard-tokens 5X a b":      "is no number such as 2048, 64k, 100M",
		"mount --allow-other=perhaps a b": `--allow-other: "perhaps" is not true or false`,
		// A flag of another command that mounts is named with that command. Datasets are read-only.
		"mount --size 1GiB a b":                  "unknown flag --size: it is a flag of hbmfs kv mount",
		"mount --keep 2 a b":                     "unknown flag --keep: it is a flag of hbmfs checkpoint mount",
		"kv mount --decode a b":                  "--decode is a flag of hbmfs mount: a volume has no use for it",
		"checkpoint mount --cache-dir c a b":     "--cache-dir is a flag of hbmfs mount",
		"checkpoint mount --memory 1GiB a b":     "unknown flag --memory: it is a flag of hbmfs kv mount",
		"mount -o rw a b":                        "a dataset is mounted read-only",
		"mount -o former_spelling=x a b":         "not known",
		"kv mount -o size=1 a b":                 "--size is missing",
		"mount --kv --checkpoints a b":           "unknown flag --checkpoints",
		"checkpoint mount --draft-life ever a b": "is none of mount, container",
		"version now":                            "it takes no arguments, not 1",
		"locate":                                 "it takes 1 argument, not 0",
	} {
		code, stdout, stderr := said(strings.Fields(line)...)
		if code != exitUsage || stdout != "" || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("hbmfs %s: exit code %d, %q and %q; want %d and one line with %q", line, code, stdout, stderr, exitUsage, want)
		}
	}
}

// An empty argument is no path: it would be the working directory.
func TestEmptyArguments(t *testing.T) {
	for _, args := range [][]string{{"mount", "/data", ""}, {"mount", "", "/mnt"}, {"umount", ""}, {"pack", "", "out"}, {"inspect", ""}, {"warm", "a", ""},
		{"checkpoint", "rm", ""}, {"cache", "ls", ""}, {"kv", "clear", "/mnt", ""}, {"check", ""}} {
		code, stdout, stderr := said(args...)
		if code != exitUsage || stdout != "" || !strings.Contains(stderr, "is empty: is a variable not set?") || strings.Count(stderr, "\n") != 1 {
			t.Errorf("hbmfs %q: exit code %d, %q and %q", args, code, stdout, stderr)
		}
	}
}

// Every flag of bytes takes every way to write a size.
func TestSizesAreReadEverywhere(t *testing.T) {
	flags := map[string][]string{
		"mount": {"cache-size", "cache-segment", "cache-min-free", "cache-scrub", "decode-scan", "max-listing", "read-ahead"},
		"read":  {"offset", "length"}, "bench": {"block", "sample", "align", "slot", "window", "length"}, "plan": {"epoch", "checkpoint", "weights"}, "warm": {"rate-limit"},
	}
	root := newRootCommand()
	for name, flags := range flags {
		cmd, _, err := root.Find([]string{name})
		if err != nil {
			t.Fatal(err)
		}
		for _, flag := range flags {
			for _, text := range []string{"10G", "10GB", "1T", "1.5TiB", "4096"} {
				if err := cmd.Flags().Set(flag, text); err != nil {
					t.Errorf("hbmfs %s --%s %s: %v", name, flag, text, err)
				}
			}
		}
	}
}

// completions are the words that a shell offers after a command line.
func completions(t *testing.T, args ...string) []string {
	t.Helper()
	code, stdout, stderr := said(append([]string{"__complete"}, args...)...)
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	if code != exitOK || len(lines) == 0 {
		t.Fatalf("complete %q: exit code %d: %s", args, code, stderr)
	}
	return lines[:len(lines)-1] // the last is the directive
}

func TestCompletion(t *testing.T) {
	for line, want := range map[string]string{
		"pack --to ": "nanogpt", "mount --format ": "safetensors", "inspect --format ": "megatron", "pack --tokenizer ": "cl100k_base", "read --path ": "mapped", "read --to ": "gpu:0",
		"cufile-json --for ": "checkpoint", "mount --log-level ": "debug", "pack --from ": "jsonl", "bench --paths ": "staged", "bench --modes ": "gather", "top --sort ": "bytes",
		"check --require ": "direct", "read --require ": "direct", "help cache ": "verify\tCompare all bytes of a cache with their checksums",
	} {
		if got := completions(t, strings.Split(line, " ")...); !slices.Contains(got, want) {
			t.Errorf("hbmfs %scompletes to %q, want %q among them", line, got, want)
		}
	}
}

func TestTopUsage(t *testing.T) {
	for _, args := range [][]string{{"--json"}, {"--metrics"}, {"--once", "--json", "--metrics"}, {"--interval", "0s"}, {"--sort", "luck"}, {"more"}} {
		if code, stdout, stderr := said(append([]string{"top"}, args...)...); code != exitUsage {
			t.Errorf("top %q: exit code %d, want %d: %s%s", args, code, exitUsage, stdout, stderr)
		}
	}
}

// Spellings of earlier releases, and lines of /etc/fstab, choose the command of a volume.
func TestFormerMounts(t *testing.T) {
	for line, want := range map[string]string{
		"mount a b":                             "mount a b",
		"mount --checkpoints a b":               "checkpoint mount --former-spelling=mount_--checkpoints a b",
		"mount --keep 2 a b --checkpoints=true": "checkpoint mount --former-spelling=mount_--checkpoints --keep 2 a b",
		"mount --kv=false a b":                  "mount --kv=false a b",
		"mount -o allow_other,kv,size=1 a b":    "kv mount --former-spelling=mount_--kv -o allow_other,size=1 a b",
		"mount -okv -- a --kv":                  "kv mount --former-spelling=mount_--kv -o  -- a --kv",
		"mount --options=checkpoints a b":       "checkpoint mount --former-spelling=mount_--checkpoints --options  a b",
		"umount --kv a":                         "umount --kv a",
	} {
		if got := formerMount(strings.Fields(line), ""); strings.Join(got, " ") != strings.ReplaceAll(want, "mount_", "mount ") {
			t.Errorf("%s becomes %q, want %q", line, got, want)
		}
	}
	for line, want := range map[string]string{
		"a b -o rw,allow_other":  "mount --wait=2m --former-spelling=mount.fuse.hbmfs -o rw,allow_other -- a b",
		"a b -o rw,checkpoints":  "checkpoint mount --former-spelling=mount.fuse.hbmfs -o rw -- a b",
		"-n a b -o kv,size=1 -s": "kv mount --former-spelling=mount.fuse.hbmfs -o size=1 -- a b",
	} {
		if got, err := fromMount8(strings.Fields(line)); err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: %q, %v, want %q", line, got, err, want)
		}
	}
}

// The flags of a command are its own: those of datasets are no flags of volumes in help, and few are in the first group.
func TestFlagsAreByProduct(t *testing.T) {
	for line, most := range map[string]int{"mount": 15, "checkpoint mount": 10, "kv mount": 10} {
		_, help, _ := said(append(strings.Fields(line), "--help")...)
		first, _, found := strings.Cut(help[strings.Index(help, "\nFlags:\n"):], "\nAdvanced flags:\n")
		if n := strings.Count(first, " --"); !found || n == 0 || n > most+strings.Count(first, "with --") {
			t.Errorf("hbmfs %s --help lists %d flags first, want at most %d", line, n, most)
		}
		if strings.Count(help, "(default: as at the source) (default") > 0 {
			t.Errorf("hbmfs %s --help states a default twice", line)
		}
		if volume := line != "mount"; volume == strings.Contains(help, "--cache-size") {
			t.Errorf("hbmfs %s --help: flags of datasets: %v", line, !volume)
		}
	}
}
