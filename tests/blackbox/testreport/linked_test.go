package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What was linked for a package is taken again as long as nothing has changed, and replaced then.
func TestLinkedTestsAreKept(t *testing.T) {
	madeModule(t, map[string]string{"a": `t.Log("first")`, "b": ""})
	tested := func(want ...string) (kept map[string]bool) {
		t.Helper()
		out := &strings.Builder{}
		if err := run([]string{"--linked", "linked", "-trimpath", "-buildvcs=false", "./..."}, out, nil); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, text := range want {
			if !strings.Contains(out.String(), text) {
				t.Errorf("the report lacks %q:\n%s", text, out)
			}
		}
		names, err := os.ReadDir("linked")
		if err != nil {
			t.Fatal(err)
		}
		kept = map[string]bool{}
		for _, name := range names {
			kept[name.Name()] = true
		}
		return kept
	}
	before := tested("2 passed, 0 failed, 0 skipped\n")
	if len(before) != 2 {
		t.Fatalf("kept are %v", before)
	}
	for name := range before { // the linker writes no such program
		if err := os.WriteFile(filepath.Join("linked", name), []byte("#!/bin/sh\necho PASS\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join("b", "x_test.go"), []byte("package b\n\nimport \"testing\"\n\nfunc TestNew(t *testing.T) {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	after := tested("1 passed, 0 failed, 0 skipped\n") // the script has no tests, and b is linked again
	same := 0
	for name := range after {
		if before[name] {
			same++
		}
	}
	if len(after) != 2 || same != 1 {
		t.Errorf("kept are %v, were %v", after, before)
	}
	if err := os.WriteFile(filepath.Join("b", "x_test.go"), []byte("package b\n\nfunc f() { missing() }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run([]string{"--linked", "linked", "-trimpath", "-buildvcs=false", "./b"}, &strings.Builder{}, nil); err == nil {
		t.Error("tests that cannot be built pass")
	}
}
