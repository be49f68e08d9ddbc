package host

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/hbmfs/hbmfs/internal/csi/volume"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

func TestEnvironmentLendsNoRights(t *testing.T) {
	got := environment([]string{
		"PATH=/bin", "HTTPS_PROXY=p", "AWS_REGION=eu-central-1", "AWS_ENDPOINT_URL_S3=http://h", "AWS_ACCESS_KEY_ID=a", "AWS_SECRET_ACCESS_KEY=s", "AWS_SESSION_TOKEN=t",
		"AWS_PROFILE=p", "AWS_SHARED_CREDENTIALS_FILE=f", "AWS_CONFIG_FILE=f", "AWS_ROLE_ARN=r", "AWS_WEB_IDENTITY_TOKEN_FILE=f", "AWS_CONTAINER_CREDENTIALS_FULL_URI=u",
		"AWS_SOMETHING_NEW=x", "HF_TOKEN=x", "GOOGLE_APPLICATION_CREDENTIALS=f", "CLOUDSDK_CONFIG=d", "GCE_METADATA_HOST=h", "HF_HOME=/h", "HF_HUB_OFFLINE=1", "HUGGING_FACE_HUB_TOKEN=x", "XDG_CACHE_HOME=/c", "XDG_CONFIG_HOME=/c", "XDG_RUNTIME_DIR=/r", "DOCKER_CONFIG=d", "DOCKER_AUTH_CONFIG=x", "REGISTRY_AUTH_FILE=f", "HF_ENDPOINT=http://h", "AZURE_TENANT_ID=t", "AZURE_STORAGE_KEY=x", "AZURE_AUTHORITY_HOST=https://h", "MINIO_ROOT_PASSWORD=x", "HOME=/root", "NOTIFY_SOCKET=/run/n", "HBMFS_DAEMON=1", "HBMFS_OTHER=1",
	})
	if want := []string{"PATH=/bin", "HTTPS_PROXY=p", "AWS_REGION=eu-central-1", "AWS_ENDPOINT_URL_S3=http://h", "HF_ENDPOINT=http://h", "AZURE_AUTHORITY_HOST=https://h", "HBMFS_OTHER=1"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	v := &nodeVolume{host: &Host{opt: Options{StateDir: "/s"}}, key: "k"}
	for auth, want := range map[string][]string{
		volume.AuthAnonymous: nil,
		volume.AuthSecret:    {"AWS_SHARED_CREDENTIALS_FILE=/s/volumes/k/credentials"},
		volume.AuthPod:       {"AWS_WEB_IDENTITY_TOKEN_FILE=/s/volumes/k/token", "AWS_ROLE_ARN=r", "AWS_ROLE_SESSION_NAME=hbmfs-k"},
	} {
		want = append([]string{"HBMFS_DAEMON=1", "AWS_EC2_METADATA_DISABLED=true"}, want...)
		if got := v.rights(volume.Spec{Auth: auth, Role: "r"}); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", auth, got, want)
		}
	}
	if got := v.rights(volume.Spec{Source: "hf://org/name", Auth: volume.AuthSecret}); !slices.Contains(got, "HF_TOKEN_PATH=/s/volumes/k/credentials") {
		t.Errorf("the token of the Hub: %q", got)
	}
	if got := v.rights(volume.Spec{Source: "gs://bucket", Auth: volume.AuthSecret}); !slices.Contains(got, "GOOGLE_APPLICATION_CREDENTIALS=/s/volumes/k/credentials") {
		t.Errorf("the credentials of Google: %q", got)
	}
}

// TestAKeeperOfAnotherUser has processes look as keepers do. One of another user is none, wherever its log seems to be.
func TestAKeeperOfAnotherUser(t *testing.T) {
	blackbox.NeedRoot(t)
	n, dir := &node{T: t}, t.TempDir()
	for _, tool := range []string{"bash", "setpriv"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s", tool)
		}
	}
	n.must(os.WriteFile(filepath.Join(dir, "keeper"), []byte("echo there; kill -STOP $$"), 0o644))
	n.must(os.Chmod(dir, 0o755))
	for user, want := range map[string]int{"0": 1, "1000": 0} {
		log := filepath.Join(dir, user)
		n.must(os.Mkdir(log, 0o755))
		n.start("bash", "-c", fmt.Sprintf("cd %s; exec setpriv --reuid=%s --clear-groups bash keeper 2>%s/log", dir, user, log))
		if pids, err := keepersBelow(log); err != nil || len(pids) != want {
			t.Errorf("of user %s there are keepers %v, %v, want %d", user, pids, err, want)
		}
	}
}

func TestCodeOf(t *testing.T) {
	for _, c := range []struct {
		exit   int
		remote bool
		want   codes.Code
	}{{2, true, codes.InvalidArgument}, {5, false, codes.NotFound}, {6, true, codes.PermissionDenied}, {1, true, codes.Unavailable}, {1, false, codes.Internal}, {-1, false, codes.Internal}} {
		if got := codeOf(c.exit, c.remote); got != c.want {
			t.Errorf("exit code %d, remote %v: %v, want %v", c.exit, c.remote, got, c.want)
		}
	}
}

func TestBelow(t *testing.T) {
	for _, c := range []struct {
		path, dir string
		want      bool
	}{
		{"/a/b", "/a", true}, {"/a", "/a", true}, {"/a/b", "/a/", true}, {"/ab", "/a", false}, {"/", "/a", false}, {"/a", "/", true}, {"", "/a", false},
	} {
		if got := below(c.path, c.dir); got != c.want {
			t.Errorf("%q below %q: %v", c.path, c.dir, got)
		}
	}
}
