package volume

import (
	"cmp"
	"encoding/json"
	"regexp"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hbmfs/hbmfs/internal/text/address"
)

// Attributes that say what the token of a pod is exchanged for at Google.
const (
	provider = "workloadIdentityProvider"
	account  = "googleServiceAccount" // that the identity acts for
)

// rolesOf lists the attributes among values that are a scheme's role.
func rolesOf(values map[string]string) (names []string) {
	for _, s := range address.Schemes() {
		if s.Role != "" && values[s.Role] != "" && !slices.Contains(names, s.Role) {
			names = append(names, s.Role)
		}
	}
	return names
}

// checkRole names the mistake in a role, and the audiences of a token that is exchanged for it, the best first.
func checkRole(name, role string) (why string, audiences []string) {
	form, want := `^arn:`, "arn:aws:iam::ACCOUNT:role/NAME"
	audiences = []string{"sts.amazonaws.com"}
	if name == provider {
		form = `^//iam\.googleapis\.com/projects/[0-9]+/locations/global/workloadIdentityPools/[a-z0-9-]+/providers/[a-z0-9-]+$`
		want = "//iam.googleapis.com/projects/NUMBER/locations/global/workloadIdentityPools/POOL/providers/PROVIDER"
		audiences = []string{"https:" + role, role} // the former is what a provider takes by default
	}
	if !regexp.MustCompile(form).MatchString(role) {
		return "want " + want, nil
	}
	return "", audiences
}

// useToken has the daemon take a role with the token of the pod's service account.
func (w *Want) useToken(r Request, name, role, actsFor string) error {
	why, audiences := checkRole(name, role)
	if why != "" {
		return invalid("volume attribute %s=%q: %s", name, role, why)
	}
	if actsFor != "" && !regexp.MustCompile(`^[a-z0-9-]+@[a-z0-9.-]+\.gserviceaccount\.com$`).MatchString(actsFor) {
		return invalid("volume attribute %s=%q: want NAME@PROJECT.iam.gserviceaccount.com", account, actsFor)
	}
	w.Role, w.Account = role, actsFor
	if r.Staging { // no pod yet
		return nil
	}
	var given map[string]struct {
		Token string `json:"token"`
	}
	if err := json.Unmarshal([]byte(cmp.Or(r.Attributes[tokens], "{}")), &given); err != nil {
		return invalid("%s is not what kubelet sends: want a JSON object of audiences", tokens)
	}
	for _, audience := range audiences {
		if len(w.Token) == 0 {
			w.Token = []byte(given[audience].Token)
		}
	}
	if len(w.Token) == 0 {
		return status.Errorf(codes.FailedPrecondition, "volume attribute %s needs a token of the pod's service account for %s: list it in tokenRequests of the CSIDriver object", name, audiences[0])
	}
	namespace, account := r.Attributes[PodNamespace], r.Attributes[serviceAccount]
	if namespace == "" || account == "" {
		return status.Errorf(codes.FailedPrecondition, "volume attribute %s needs to know the pod's service account: set podInfoOnMount in the CSIDriver object", name)
	}
	w.Identity = Identity("service account", namespace, account)
	return nil
}

// FederatedFile is the file of Google's credentials by which a daemon exchanges the token in another file, nil where the spec has no such identity.
// It has no secret. The servers that hear the token are Google's own.
func (s Spec) FederatedFile(tokenFile string) []byte {
	if s.Auth != AuthPod || address.Of(s.Asked()).Role != provider {
		return nil
	}
	file := map[string]any{
		"type": "external_account", "audience": s.Role, "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
		"token_url": "https://sts.googleapis.com/v1/token", "credential_source": map[string]string{"file": tokenFile},
	}
	if s.Account != "" {
		file["service_account_impersonation_url"] = "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/" + s.Account + ":generateAccessToken"
	}
	text, err := json.Marshal(file)
	if err != nil {
		panic("volume: internal error: " + err.Error())
	}
	return text
}
