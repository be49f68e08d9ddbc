// Package deploy_test tests the files of deploy as their users do: the chart and the manifests with Helm's and
// Kubernetes' own code, the examples with the driver's and the Python package's, the units and packages by running and
// installing them.
//
// Helm's and Kubernetes' code is linked into a program of its own, k8scheck, in a module of its own. `make test` builds
// it, and the packages, and says in the environment where they are. None of this needs a cluster or a container engine,
// and none of it says that a cluster would run it.
package deploy_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// patience bounds every wait and every program of these tests.
const patience = 5 * time.Minute

// deploy returns a path below deploy.
func deploy(elem ...string) string {
	return filepath.Join(append([]string{"..", "..", "..", "deploy"}, elem...)...)
}

// files returns what a pattern below deploy finds, which must be something.
func files(t *testing.T, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) == 0 {
		t.Fatalf("%s: %v, %v", pattern, found, err)
	}
	slices.Sort(found)
	return found
}

// given returns the program or directory that a variable of the environment names, and skips where there is none.
func given(t *testing.T, variable string) string {
	t.Helper()
	path := os.Getenv(variable)
	if path == "" {
		t.Skipf("needs %s: make test builds it", variable)
	}
	return path
}

// output runs a program to its end and returns what it printed; it must succeed if well is set, and fail otherwise.
func output(t *testing.T, well bool, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if (err == nil) != well || ctx.Err() != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// document is one document of a YAML file, and where it is from.
type document struct {
	file string
	body map[string]any
}

// documents reads YAML files.
func documents(t *testing.T, names ...string) (all []document) {
	t.Helper()
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, parse(t, name, text)...)
	}
	return all
}

func parse(t *testing.T, name string, text []byte) (all []document) {
	t.Helper()
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for {
		d := document{file: name}
		err := decoder.Decode(&d.body)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if d.body != nil {
			all = append(all, d)
		}
	}
}

// visit calls f for every map below a node.
func visit(node any, f func(map[string]any)) {
	switch n := node.(type) {
	case map[string]any:
		f(n)
		for _, child := range n {
			visit(child, f)
		}
	case []any:
		for _, child := range n {
			visit(child, f)
		}
	}
}
