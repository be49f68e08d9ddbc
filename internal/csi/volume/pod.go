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

// Attributes that say what the token of a pod is exchanged for.
const (
	roleARN  = "roleArn"                  // of AWS
	provider = "workloadIdentityProvider" // of Google
	account  = "googleServiceAccount"     // that the provider's identity acts for
	client   = "azureClientId"            // of Entra ID: an application or a managed identity
	tenant   = "azureTenantId"            // of Entra ID, where the client is
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

// checkForm refuses values of these attributes that are none.
func checkForm(name, value string) error {
	form := map[string]struct{ expression, want string }{
		roleARN: {`^arn:`, "arn:aws:iam::ACCOUNT:role/NAME"},
		provider: {
			`^//iam\.googleapis\.com/projects/[0-9]+/locations/global/workloadIdentityPools/[a-z0-9-]+/providers/[a-z0-9-]+$`,
			"//iam.googleapis.com/projects/NUMBER/locations/global/workloadIdentityPools/POOL/providers/PROVIDER",
		},
		account: {`^[a-z0-9-]+@[a-z0-9.-]+\.gserviceaccount\.com$`, "NAME@PROJECT.iam.gserviceaccount.com"},
		client:  {`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`, "the client ID of an application or a managed identity, as in 00000000-0000-0000-0000-000000000000"},
		tenant:  {`^[0-9A-Za-z][0-9A-Za-z.-]*$`, "the ID or the domain of a tenant of Entra ID"},
	}[name]
	if !regexp.MustCompile(form.expression).MatchString(value) {
		return invalid("volume attribute %s=%q: want %s", name, value, form.want)
	}
	return nil
}

// audiencesOf lists the audiences of a token that is exchanged for a role, the best first.
func audiencesOf(name, role string) []string {
	switch name {
	case provider:
		return []string{"https:" + role, role} // the former is what a provider takes by default
	case client:
		return []string{"api://AzureADTokenExchange"}
	}
	return []string{"sts.amazonaws.com"}
}

// useToken has the daemon take a role with the token of the pod's service account.
func (w *Want) useToken(r Request, name string, values map[string]string) error {
	for _, n := range []string{name, account, tenant} {
		if err := checkForm(n, values[n]); err != nil && values[n] != "" {
			return err
		}
	}
	w.Role, w.Account, w.Tenant = values[name], values[account], values[tenant]
	audiences := audiencesOf(name, w.Role)
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
