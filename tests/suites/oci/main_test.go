// Package oci_test tests oci:// sources by the built hbmfs: mounts of artifacts and images on go-containerregistry's own registry, pushed by the test, by
// oras and by crane (tests/suites/oci/clients, which HBMFS_ORAS and HBMFS_CRANE name built). The origin's contract is tested in its package.
package oci_test

import (
	"os"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// suite is what all tests share; TestMain makes it.
var suite *blackbox.Suite

func TestMain(m *testing.M) {
	os.Exit(blackbox.Main("oci", &suite, func() int {
		for name, value := range map[string]string{
			"HOME": suite.Dir, "REGISTRY_AUTH_FILE": "", "DOCKER_CONFIG": "", "DOCKER_AUTH_CONFIG": "", "XDG_RUNTIME_DIR": "", "XDG_CONFIG_HOME": "", "NO_PROXY": "*",
		} {
			if os.Setenv(name, value) != nil {
				return 1
			}
		}
		return m.Run()
	}))
}

// must fails the test on an error of the test's own doing.
func must(t testing.TB, err error) {
	t.Helper()
	blackbox.Must(t, err)
}

// mount mounts a source. When the test ends it must come off, and the daemon must end.
func mount(t *testing.T, source string, flags ...string) *blackbox.Mounted {
	t.Helper()
	return suite.MountOn(t, source, suite.NewDir(t), append(flags, "--no-keeper")...)
}

// said runs a command of hbmfs, and gives all that it says.
func said(t testing.TB, args ...string) (string, error) {
	t.Helper()
	out, err := suite.Command(t.Context(), args...).CombinedOutput()
	return string(out), err
}

// wantSaid runs a command that must fail, and say so.
func wantSaid(t testing.TB, says []string, args ...string) {
	t.Helper()
	out, err := said(t, args...)
	if err == nil {
		t.Errorf("%v works", args)
	}
	t.Logf("%s", out)
	for _, text := range says {
		if !strings.Contains(out, text) {
			t.Errorf("it does not say %q", text)
		}
	}
	if strings.Contains(out, "secret") || strings.ContainsAny(out, "\x1b\u009b") {
		t.Error("it says a secret, or what a terminal obeys")
	}
}
