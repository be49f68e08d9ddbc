// Package credentials_test tests the credentials of all origins over the built hbmfs: nobody sees them, and they are renewed under a mount,
// also while its daemon is replaced. The servers are fakes of this package. They repeat all that they hear in their errors.
package credentials_test

import (
	"os"
	"testing"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// suite is what all tests share; TestMain makes it.
var suite *blackbox.Suite

func TestMain(m *testing.M) {
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_SESSION_TOKEN": "", "AWS_PROFILE": "", "AWS_CONFIG_FILE": "/dev/null", "AWS_EC2_METADATA_DISABLED": "true",
		"HF_TOKEN": "", "HUGGING_FACE_HUB_TOKEN": "", "HF_ENDPOINT": "", "HF_HUB_OFFLINE": "", "TRANSFORMERS_OFFLINE": "", "HF_HUB_CACHE": "",
		"CLOUDSDK_CONFIG": "/nowhere", "STORAGE_EMULATOR_HOST": "", "GCE_METADATA_HOST": "127.0.0.1:1", "NO_PROXY": "*",
	} {
		_ = os.Setenv(name, value) // there is no reason for an error
	}
	os.Exit(blackbox.Main("credentials", &suite, m.Run))
}

// must fails the test on an error of the test's own doing.
func must(t testing.TB, err error) {
	t.Helper()
	blackbox.Must(t, err)
}
