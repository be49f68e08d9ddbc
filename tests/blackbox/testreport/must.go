package main

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// requirement is a test that must run where the machine has its tools.
type requirement struct {
	pkg   string // path below the module, such as "fs"
	test  string // a top-level test's name
	needs []string
}

// readRequirements reads a file of tests that must not skip, where one is named.
func readRequirements(path string) ([]requirement, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the list of tests that must not skip: %w", err)
	}
	list, err := parseRequirements(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return list, nil
}

// parseRequirements reads the format that tests/must_not_skip.txt explains in its first lines.
func parseRequirements(text string) ([]requirement, error) {
	var list []requirement
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if len(words) == 1 {
			return nil, fmt.Errorf("line %d: want PACKAGE TEST [NEED...], got %q", i+1, line)
		}
		for _, need := range words[2:] {
			if !slices.Contains([]string{"fuse", "root", "python", "peers", "cc", "s3", "gcs", "azurite", "oci", "sanity", "nginx", "strace", "k8scheck", "packages", "dpkg", "rpm", "handover"}, need) {
				return nil, fmt.Errorf("line %d: unknown need %q", i+1, need)
			}
		}
		list = append(list, requirement{pkg: words[0], test: words[1], needs: words[2:]})
	}
	return list, nil
}

// unmet says which requirements were not kept, given this machine's tools.
//
// A subtest that skipped counts as its parent's skip: a table of formats must not lose one in silence.
func unmet(list []requirement, r *results, has func(need string) bool) []string {
	var problems []string
	for _, req := range list {
		if slices.ContainsFunc(req.needs, func(need string) bool { return !has(need) }) {
			continue
		}
		found := false
		for k, outcome := range r.outcome {
			if !strings.HasSuffix(k.pkg, "/"+req.pkg) {
				continue
			}
			if k.test == req.test {
				found = true
			}
			if outcome == "skip" && (k.test == req.test || strings.HasPrefix(k.test, req.test+"/")) {
				problems = append(problems, fmt.Sprintf("%s %s skipped: %s", req.pkg, k.test, reason(r.output[k])))
			}
		}
		if !found {
			problems = append(problems, fmt.Sprintf("%s %s did not run (renamed or removed?)", req.pkg, req.test))
		}
	}
	slices.Sort(problems)
	return problems
}

// machineHas tells whether this machine can meet a need of must_not_skip.txt.
func machineHas(need string) bool {
	switch need {
	case "fuse":
		return blackbox.CanMount() == nil
	case "root":
		return os.Geteuid() == 0
	case "python":
		return os.Getenv("HBMFS_PYTHON") != ""
	case "peers":
		return os.Getenv("HBMFS_PEERS") != ""
	case "s3":
		return os.Getenv("HBMFS_S3SERVER") != ""
	case "gcs":
		return os.Getenv("HBMFS_GCSSERVER") != ""
	case "oci":
		return os.Getenv("HBMFS_OCI_CLIENTS") != ""
	case "azurite":
		return os.Getenv("HBMFS_AZURITE") != ""
	case "sanity":
		return os.Getenv("HBMFS_CSI_SANITY") != ""
	case "nginx":
		_, err := blackbox.Nginx()
		return err == nil
	case "k8scheck":
		return os.Getenv("HBMFS_K8SCHECK") != ""
	case "packages":
		return os.Getenv("HBMFS_PACKAGES") != ""
	case "dpkg", "rpm":
		_, err := exec.LookPath(need)
		return err == nil
	case "handover":
		return linux(6, 9)
	case "strace":
		return blackbox.CanInject() == nil
	case "cc":
		_, err := exec.LookPath("cc")
		return err == nil
	}
	return false
}

// linux tells whether the kernel is of a version or a later one.
func linux(major, minor int) bool {
	text, err := os.ReadFile("/proc/sys/kernel/osrelease")
	var has [2]int
	if _, scanErr := fmt.Sscanf(string(text), "%d.%d", &has[0], &has[1]); err != nil || scanErr != nil {
		return false
	}
	return slices.Compare(has[:], []int{major, minor}) >= 0
}
